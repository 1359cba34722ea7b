"""Be at it for so many seconds."""

import sys
import time

time.sleep(float(sys.argv[1]))
