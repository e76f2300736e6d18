#!/usr/bin/env bash
# What srun does with a command inside of a job, on this machine: starts its tasks, each in a session
# of its own, with the variables that Slurm documents for a step.
# Usage: fake_srun.sh [--ntasks=COUNT] [--nodelist=LIST] [other options] COMMAND...
tasks=${SLURM_NTASKS:-1} nodes=$SLURM_JOB_NODELIST
while [[ $1 == --* ]]; do
  case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --nodelist=*) nodes=${1#*=} ;;
    --nodes=1 | --overlap | --unbuffered | --cpu-bind=none) ;;
    *) echo "srun: unrecognized option '$1'" >&2; exit 1 ;;
  esac
  shift
done
export SLURM_STEP_ID=$((RANDOM % 100)) SLURM_STEP_NUM_TASKS=$tasks SLURM_NTASKS=$tasks
export SLURM_STEP_NODELIST=$nodes
if [ "$tasks" = 1 ]; then
  SLURM_PROCID=0 SLURMD_NODENAME=$nodes setsid -w "$@" < <(cat) > >(cat)
  exit
fi
status=0
for ((task = 0; task < tasks; task++)); do
  SLURM_PROCID=$task setsid -w "$@" </dev/null &
  all+=($!)
done
for one in "${all[@]}"; do wait "$one" || status=$?; done
exit $status
