"""A verification or an audit as one page to look at, and as one JSON file of the same content."""
