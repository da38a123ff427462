"""What a release consists of: wheel, sdist, SBOM and locks."""
