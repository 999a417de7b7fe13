# A researcher with a train.py and an idea: is it better, is a step of it faster, and does it work in nocap's model?

# docs/your-trainer.md
python -m nocap.race --arm base='python docs/own_train.py {seed}' \
    --arm slow='python docs/own_train.py {seed} --lr 1' --metric 'val loss (\S+)' --json race.json
# docs/custom.md
nocap new attention my_attention --dir my_idea
sed -i 's/^cap: 50$/cap: 0.01/' my_idea/attention/my_attention.yaml
nocap check my_idea --only causal
python -m nocap.train --config-dir my_idea --multirun attention=flash,my_attention seed=0,1,2 $NANO
# docs/compare.md
python -m nocap.compare outputs --html report.html --json comparison.json
# docs/custom.md
python -m nocap.bench --config-dir my_idea --arm attention=flash --arm attention=my_attention --json bench.json $TIMED
python -m nocap.profile --config-dir my_idea attention=my_attention --json profile.json model=nano
# docs/challenge.md
python -m nocap.compare outputs --baseline attention=flash --target 5.5 --json result.json --markdown tables.md
python -m nocap.compare result.json
