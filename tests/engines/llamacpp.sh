#!/usr/bin/env bash
# Real llama.cpp, two replicas of a tiny model, behind `warmroute serve`. The model (random weights, 3 MB)
# lies beside the repository; without it this is skipped with a note.
. "$(dirname "$0")/../lib.sh"
model=${WARMROUTE_SHARED:-$PWD/../shared}/engines/models/tiny-llama.gguf
if [ ! -f "$model" ]; then
  echo "llama.cpp: skipped, no model at ../shared/engines/models/tiny-llama.gguf"
  exit 0
fi
venv llamacpp xllamacpp==2026.10.11549
logs=$(mktemp -d "$SCRATCH/llamacpp-logs.XXXX")
trap 'rc=$?; stop_children; [ $rc = 0 ] && rm -rf "$logs" || tail -n 30 "$logs"/*; exit $rc' EXIT
for n in a b; do
  start "$logs/$n" "$SCRATCH/llamacpp/bin/python" -u tests/engines/serve_llamacpp.py "$model" tiny-llama
done
a=$(address "$logs/a" "listening at http://")
b=$(address "$logs/b" "listening at http://")
start "$logs/router" "$WARMROUTE" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --model tiny-llama --policy session_sticky \
  --replica "http://$a" --replica "http://$b"
router=$(address "$logs/router" "listening.*role=proxy.*address=")
admin=$(address "$logs/router" "listening.*role=admin.*address=")
until_true "the router is ready" 30 "$SCRATCH/llamacpp/bin/python" -c \
  "import urllib.request; urllib.request.urlopen('http://$admin/readyz')"
compared=$("$SCRATCH/llamacpp/bin/python" tests/engines/compare.py "$router" "$admin" "$a" "$b")
stop_children
children=()

# The same two engines anew, by prefix: what we say is cached there, and what they say.
for n in a b; do
  start "$logs/$n" "$SCRATCH/llamacpp/bin/python" -u tests/engines/serve_llamacpp.py "$model" tiny-llama
done
a=$(address "$logs/a" "listening at http://")
b=$(address "$logs/b" "listening at http://")
cat >"$logs/router.yaml" <<YAML
listen: 127.0.0.1:0
admin: { listen: 127.0.0.1:0 }
expose: [127.0.0.0/8]
pools:
  - model: tiny-llama
    tokenizer: ${model%.gguf}
    policy: { type: cache_aware, min_match_tokens: 64 }
    replicas: ["http://$a", "http://$b"]
YAML
start "$logs/router" "$WARMROUTE" serve --config "$logs/router.yaml"
router=$(address "$logs/router" "listening.*role=proxy.*address=")
admin=$(address "$logs/router" "listening.*role=admin.*address=")
until_true "the router is ready" 30 "$SCRATCH/llamacpp/bin/python" -c \
  "import urllib.request; urllib.request.urlopen('http://$admin/readyz')"
"$SCRATCH/llamacpp/bin/python" tests/engines/prefix.py "$router" "$admin"
echo "$compared" | tail -n 1
