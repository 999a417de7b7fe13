# A reader on a laptop, with no GPU, account or network, who wants to see a real result and then look around.

# docs/train.md
python -m nocap.train data=text 'data.path=[LOG.md, experiments/**/*.md, nocap/**/*.py]' $TINY
python -m nocap.train data=text 'data.path=[LOG.md, experiments/**/*.md, nocap/**/*.py]' $TINY
# docs/runs.md
python -m nocap.runs
python -m nocap.runs show last
python -m nocap.plot last
# docs/runs.md
python -m nocap.generate run=last prompt='def main' temperature=0.8 samples=3 --json texts.json $SHORT_TEXT
# docs/compare.md
python -m nocap.train --multirun attention=flash,gqa seed=0,1,2 $NANO
python -m nocap.compare outputs/grids/attention-seed-* --html report.html --json comparison.json
# docs/studies.md
python -m nocap.study --board experiments
# docs/your-trainer.md
printf 'arm,seed,val_loss\nbase,0,3.281\nbase,1,3.284\nbase,2,3.279\n' > results.csv
printf 'idea,0,3.262\nidea,1,3.268\nidea,2,3.259\n' >> results.csv
python -m nocap.compare results.csv --json logs.json
