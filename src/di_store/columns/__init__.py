"""What a row is: columns, their types and shapes, ragged ones among them."""
