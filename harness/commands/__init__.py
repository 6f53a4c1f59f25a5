"""What each command of the command line does; cli.py only parses and dispatches."""
