"""Race two settings of docs/own_train.py until the answer is safe, or until the next command would
take more minutes than are left. The program reads nothing but JSON."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

SCRIPT = shlex.quote(os.path.relpath(Path(__file__).with_name("own_train.py")))
ARMS = {"base": f"python {SCRIPT} {{seed}}", "idea": f"python {SCRIPT} {{seed}} --lr 2.9"}

command = ["python", "-m", "nocap.race", "--json", "--metric", r"val loss (\S+)", "--pairs", "3"]
for name, words in ARMS.items():
    command += ["--arm", f"{name}={words}"]
minutes = float(sys.argv[1])
while True:
    done = subprocess.run([sys.executable, *command[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # what is wrong is on stderr
    answer = json.loads(done.stdout)
    (verdict,) = answer["verdicts"]
    print(f"{verdict['n']} pairs: {verdict['word']}")
    following = answer["next"]
    if following["command"] is None or following["minutes"] > minutes:
        break
    minutes -= following["minutes"]
    command = following["command"]
