from supervisor.python_api import Result as Result
from supervisor.python_api import run as run

__version__: str
