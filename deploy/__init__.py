"""What this project is deployed with, and the acceptance run (`python -m deploy.acceptance`)."""
