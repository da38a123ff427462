"""Files for the deployment of this project, and the acceptance run (`python -m
deploy.acceptance`)."""
