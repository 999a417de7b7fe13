"""Train a grid, and what its comparison asks for next, until nothing is open or until the next runs
would take more minutes than are left. The program reads nothing but JSON.

    python docs/grid_loop.py MINUTES KEY=VALUES …
"""

import json
import subprocess
import sys

FOLDER = "campaign"  # of its runs alone

minutes = float(sys.argv[1])
overrides = dict(word.split("=", 1) for word in sys.argv[2:])
overrides["output_dir"] = FOLDER
while True:
    words = [f"{key}={values}" for key, values in overrides.items()]
    trained = subprocess.run([sys.executable, "-m", "nocap.train", "--multirun", *words])
    if trained.returncode:
        sys.exit(trained.returncode)  # what is wrong is on stderr
    command = [sys.executable, "-m", "nocap.compare", FOLDER, "--json"]
    compared = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    following = json.loads(compared.stdout)["findings"]["next"]
    if following is None or following["minutes"] > minutes:
        break
    minutes -= following["minutes"]
    overrides[following["key"]] = ",".join(map(str, following["values"]))
print(f"next: {following}; {minutes:.1f} minutes left")
