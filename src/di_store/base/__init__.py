"""What every part of the package uses: errors, sizes, nested names, element types, checks of arguments."""
