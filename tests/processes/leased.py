"""`supervise` on a folder that is shared with other hosts, where flock does not work.

leased.py DURATION RENEW SETTLE ARGUMENT...
"""

from __future__ import annotations

import sys

from supervisor.adapters.stores.lease import LeaseTimes
from supervisor.cli.main import main
from supervisor.model_dir_ownership import Exclusion

if __name__ == "__main__":
    duration, renew, settle = (float(argument) for argument in sys.argv[1:4])
    exclusion = Exclusion(flock=False, lease=LeaseTimes(duration, renew, settle))
    sys.exit(main(sys.argv[4:], exclusion))
