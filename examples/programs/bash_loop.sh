#!/usr/bin/env bash
# A shell program: it sums up squares modulo a prime, one a step, and needs no library.
#
# supervise run --set 'trainer.init.checkpoint.pattern=step-(\d+)\.txt' -- bash examples/programs/bash_loop.sh --workdir out
#
# It writes one file a step, `out/step-N.txt`, and goes on from the newest one.
set -euo pipefail

workdir="" steps=400 every=40 step_seconds=0.05
while (($#)); do
  case "$1" in
    --workdir) workdir="$2" ;;
    --steps) steps="$2" ;;
    --every) every="$2" ;;
    --step-seconds) step_seconds="$2" ;;
    *) echo "unknown option: $1" >&2 && exit 2 ;;
  esac
  shift 2
done
: "${workdir:?--workdir is missing}"
mkdir -p "$workdir"

step=0 sum=0
for file in "$workdir"/step-*.txt; do
  number="${file##*step-}" number="${number%.txt}"
  if [[ -e "$file" && "$number" -gt "$step" ]]; then
    step="$number" sum="$(<"$file")"
  fi
done

while ((step < steps)); do
  step=$((step + 1))
  sum=$(((sum + step * step) % 999983))
  sleep "$step_seconds"
  echo "step $step sum $sum"
  if ((step % every == 0)); then
    echo "$sum" > "$workdir/step.tmp"
    mv "$workdir/step.tmp" "$workdir/step-$step.txt"
  fi
done
echo "parameters sha256: $(printf %s "$sum" | sha256sum | cut -d' ' -f1)"
