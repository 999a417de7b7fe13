# A program that proposes ideas, and reads each answer from JSON and the exit code alone.

# docs/your-trainer.md
mkdir ideas
cat > ideas/study.yaml <<'YAML'
question: which learning rate?
propose: {gain: 0.01, command: 'python docs/own_train.py {seed} --steps 60 --lr 1.0', metric: 'val loss (\S+)'}
YAML
python -m nocap.study ideas --json --propose 'python docs/own_train.py {seed} --steps 60 --lr 2.0' > accepted.json
python -m nocap.study ideas --json --propose 'python docs/own_train.py {seed} --steps 60 --lr 0.9' > not-shown.json
python -m nocap.study ideas --json --propose 'python docs/own_train.py {seed} --steps 60 --lr 2.0' > again.json
python -m nocap.study ideas --json --propose 'python docs/own_train.py {seed} --stepz 60' > failed.json && exit 1 || [ $? = 1 ]
# docs/your-trainer.md
python -m nocap.race --arm base='python docs/own_train.py {seed}' --arm slow='python docs/own_train.py {seed} --lr 1' \
    --metric 'val loss (\S+)' --json > race.json
# docs/compare.md
python -m nocap.train --multirun attention=flash,gqa seed=0,1,2 $NANO
python -m nocap.compare outputs --json - > comparison.json
# docs/runs.md
python - > api.json <<'PYTHON'
import json
from nocap import api

print(json.dumps([arm["label"] for arm in api.compare("outputs")["arms"]]))
PYTHON
