"""Arguments of public calls: bad, odd and large ones."""
