"""serve_llamacpp.py GGUF ALIAS: llama.cpp's own HTTP server, on a free loopback port; says where it listens."""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {sys.argv[2]}
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_ctx = 4096
params.n_parallel = 2
params.endpoint_metrics = True
params.ui = False
params.offline = True
params.cache_ram_mib = 64
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print("listening at", server.listening_address, flush=True)
signal.sigwait([signal.SIGTERM, signal.SIGINT])
