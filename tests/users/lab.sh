# A lab with a cluster and many ideas: what a grid takes, hand it over, come back to the verdicts, find a run among all.

# docs/compare.md
python -m nocap.train --multirun --plan attention=flash,gqa,mqa seed=0,1,2 output_dir=shared $NANO
# docs/cluster.md
python -m nocap.train --multirun attention=flash,gqa,mqa seed=0,1,2 hydra/launcher=slurm hydra.launcher.partition=$PARTITION \
    hydra.launcher.max_num_timeout=5 --detach output_dir=shared $NANO && exit 1 || [ $? = 75 ]
python -m nocap.train --multirun attention=flash,gqa,mqa seed=0,1,2 hydra/launcher=slurm hydra.launcher.partition=$PARTITION \
    hydra.launcher.max_num_timeout=5 output_dir=shared $NANO
# docs/cluster.md
python -m nocap.train --multirun 'ideas=[],[x0]' output_dir=shared $NANO > first.txt &
python -m nocap.train --multirun 'ideas=[],[x0]' output_dir=shared $NANO
wait $!
# docs/runs.md
python -m nocap.runs --output-dir shared status=finished 'val_loss<8' --sort val_loss --json runs.json
python -m nocap.plot shared/grids/attention-seed-* --png curve.png
# docs/compare.md
python -m nocap.compare shared/grids/attention-seed-* --csv runs.csv --json comparison.json
# docs/wandb.md
python -m nocap.dashboard shared/grids/attention-seed-* --json dashboard.json
# docs/compare.md
python -m nocap.train --multirun search=tpe search.trials=2 'optimizer.lr=tag(log, interval(1e-4, 1e-1))' output_dir=shared $NANO
