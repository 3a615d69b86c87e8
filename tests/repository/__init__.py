"""What the repository holds beside the package: examples, pages, tools."""
