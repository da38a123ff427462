"""The command line: `main` reads it, and each verb has a module of its name here."""
