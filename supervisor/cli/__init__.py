"""The command line: `main` reads it, and each verb has a module with its name here."""
