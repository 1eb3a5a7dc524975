"""One module a command. They parse, call and print; there is no logic here."""
