"""The files of a job as the supervisor alone knows them: their names, and how they are opened."""
