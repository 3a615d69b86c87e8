"""The structure of a row: columns, their types and shapes, including ragged columns."""
