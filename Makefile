# One virtual environment, two stamps: .venv/.runtime is what `make run` needs, .venv/.dev what the tests need besides.
# Both are made again when pyproject.toml changes. PYTHON chooses the interpreter: make run PYTHON=python3.12

PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
CODE   := $(wildcard proxy tests bench deploy)
# Many tests wait for processes and clocks: more workers than cores, and none that has run out of work waits for another.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) * 2 )))

# Some machines forbid it. Without it every sidecar that a test starts, and every worker, would compile all it loads.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo quick test check format bench compare shape simulate chaos duplicates movements fuzz prove dashboards pictures clients clean

help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.dev ## Install everything for developing into .venv

run: .venv/.runtime ## Start the proxy (127.0.0.1:8700) with the sandbox provider behind it; Ctrl-C stops it
	@exec $(BIN)/paywitness run --with-sandbox

demo: .venv/.runtime ## A hundred payments through a broken provider, with and without us; under a minute
	@exec $(BIN)/paywitness demo

quick: .venv/.dev .need-redis ## The quick tests: two to three minutes
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow"

test: check .need-redis .need-deploy .need-kubectl .need-outbound .need-prometheus ## Everything: the checks and all tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

check: .venv/.dev ## Lint, format and types; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(CODE)

format: .venv/.dev ## Put the code in its format and sort its imports
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: .venv/.dev .want-peers ## What a call costs through us, Envoy, nginx and others: make bench [QUICK=1] [WRITE=1]
	@exec $(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(WRITE),--write)

MINUTES ?= 22
compare: .venv/.dev .want-peers ## The same faults through us and through Envoy, nginx and SDKs: make compare [MINUTES=22] [QUICK=1] [RESUME=1]
	@exec $(BIN)/python -m bench.compare $(if $(QUICK),--quick,--minutes $(MINUTES)) $(if $(RESUME),--resume)

shape: .venv/.dev ## How large the product is, and what one clean POST passes through: make shape [DETAILS=1]
	@exec $(BIN)/python -m bench.shape $(if $(DETAILS),--details)

SEEDS     ?= 1-20
PAYMENTS  ?= 1000
PROCESSES ?= 1
simulate: .venv/.dev ## The whole engine in simulated worlds: make simulate SEEDS=1-200 [PAYMENTS=1000 PROCESSES=2 PLAIN=1 FOCUS=moves]
	@exec $(BIN)/python -m tests.simulation --seeds $(SEEDS) --payments $(PAYMENTS) --processes $(PROCESSES) \
		$(if $(PLAIN),--plain) $(if $(FOCUS),--focus $(FOCUS))

.PHONY: mutants
mutants: .venv/.dev .need-redis ## Bugs planted one at a time, each to be caught: make mutants [ONLY=name COUNT=10 PROCESSES=1 SEEDS=50 SURVIVORS=1 AGAIN=1 TABLE=1]
	@exec $(BIN)/python -m tests.mutants --processes $(PROCESSES) --only "$(ONLY)" $(if $(COUNT),--count $(COUNT)) \
		$(if $(filter file undefined,$(origin SEEDS)),,--seeds $(SEEDS)) $(if $(SURVIVORS),--survivors) $(if $(AGAIN),--again) \
		$(if $(NEW_MAP),--new-map) $(if $(WRITE),--write) $(if $(TABLE),--table)

JOURNAL     ?= both
CONTRACT    ?= replayed
KILLS       ?= 0
REDIS_KILLS ?= 0
RATE        ?= 20
SEED        ?= 1
chaos: .venv/.dev .need-redis ## Real processes killed, paused and starved: make chaos [SECONDS=300 JOURNAL=redis KILLS=300]
	@exec $(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) --journal $(JOURNAL) --contract $(CONTRACT) \
		--kills $(KILLS) --redis-kills $(REDIS_KILLS) --rate $(RATE) --seed $(SEED) --only "$(MISHAPS)" \
		$(if $(REPORT),--report "$(REPORT)")

duplicates: .venv/.dev .need-redis ## A hundred calls at once under each of a thousand keys: make duplicates [KEYS=1000 EACH=100]
	@exec $(BIN)/python -m tests.chaos.duplicates --keys $(or $(KEYS),1000) --each $(or $(EACH),100) \
		--journal $(if $(filter both,$(JOURNAL)),redis,$(JOURNAL))

movements: .venv/.dev .need-redis ## Captures and refunds at once, and kill -9: make movements [PAYMENTS=100 MOVEMENTS=10000 KILLS=20]
	@exec $(BIN)/python -m tests.chaos.movements --payments $(if $(filter file,$(origin PAYMENTS)),100,$(PAYMENTS)) \
		--movements $(or $(MOVEMENTS),10000) --kills $(if $(filter file,$(origin KILLS)),20,$(KILLS)) --seed $(SEED) \
		--journal $(if $(filter both,$(JOURNAL)),redis,$(JOURNAL))

fuzz: .venv/.dev ## Policies, webhooks, framing, answers, bodies, rows: make fuzz [SECONDS=60 TARGET=request]
	@exec $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) --only "$(TARGET)"

lock: .venv/.dev ## Renew the lock files of the image: newest versions that pyproject.toml allows, with their hashes
	$(BIN)/python -m deploy.locks

# The digest is that of the index of all architectures, so that the same base is meant everywhere.
.PHONY: image
image: ## Build the image over a base by digest: PYTHON_IMAGE=python:3.13-slim-bookworm@sha256:...
	@echo "$(PYTHON_IMAGE)" | grep -Eq '^python:3\.13-slim-bookworm@sha256:[0-9a-f]{64}$$' || { \
		echo "Name the base by its digest, so that the same image is built tomorrow:"; \
		echo "  docker buildx imagetools inspect python:3.13-slim-bookworm --format '{{.Manifest.Digest}}'"; \
		echo "  make image PYTHON_IMAGE=python:3.13-slim-bookworm@sha256:..."; \
		exit 1; }
	docker build --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) -f deploy/Dockerfile -t paywitness .

.PHONY: dashboards
# Of a variable that is given, its value; else what tests/prove.py has.
given = $(if $(filter file undefined,$(origin $(1))),,--$(2) $($(1)))
prove: .venv/.dev .need-redis ## All of these, a million payments first, and a table: make prove [QUICK=1] [SEEDS=1-1000 KILLS=300 ONLY=chaos]
	@exec $(BIN)/python -m tests.prove $(if $(QUICK),--quick) $(call given,SEEDS,seeds) $(call given,PAYMENTS,payments) \
		$(call given,PROCESSES,processes) $(call given,FOCUS_SEEDS,focus-seeds) \
		$(call given,FOCUS_PAYMENTS,focus-payments) $(call given,PLANTED_SEEDS,planted-seeds) $(call given,SECONDS,seconds) \
		$(call given,KILLS,kills) $(call given,REDIS_KILLS,redis-kills) $(call given,MOVEMENTS,movements) \
		$(call given,MOVEMENT_PAYMENTS,movement-payments) $(call given,MOVEMENT_KILLS,movement-kills) \
		$(call given,KEYS,keys) $(call given,EACH,each) $(call given,FUZZ_SECONDS,fuzz-seconds) $(if $(ONLY),--only "$(ONLY)")

dashboards: .venv/.dev ## Write the Grafana dashboards and the PrometheusRule anew, after an edit in deploy/
	$(BIN)/python -m deploy.grafana
	$(BIN)/python -m deploy.kubernetes

pictures: .venv/.dev .need-redis .need-prometheus ## Draw docs/pictures anew, from a provider's bad day of one minute
	$(BIN)/python -m tests.deploy.pictures

clients: .venv/.dev .need-outbound .need-clients ## Install HTTP clients of other languages, and have each pay through us
	PAYWITNESS_ALL_CLIENTS=1 $(BIN)/python -m pytest -q -rs tests/e2e/test_forward.py

clean: ## Remove .venv, caches and builds; journals and secrets in .paywitness stay
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .mutants
	find proxy tests $(wildcard bench) -name __pycache__ -type d -prune -exec rm -rf {} +


.venv/.runtime: pyproject.toml | .venv/.made
	@echo "Installing Paywitness into .venv (once, about half a minute) ..."
	@$(PIP) --editable '.[speed]'
	@touch $@

.venv/.dev: pyproject.toml | .venv/.made
	@echo "Installing Paywitness and its development tools into .venv (once, a minute or two) ..."
	@$(PIP) --editable '.[speed,dev]'
	@touch .venv/.runtime $@

# A fresh Debian has python3 without its venv module: as root it is installed, otherwise we say how.
.venv/.made:
	@echo "Making .venv ..."
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory .need-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Paywitness needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@touch $@

.PHONY: .need-venv
.need-venv:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing python3-venv from the distribution's packages ..."; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null; \
	else \
		echo "$(PYTHON) cannot make virtual environments here. Install its venv module first, for example:"; \
		echo "  sudo apt-get install python3 python3-venv"; \
		exit 1; \
	fi

# The journal's and the limits' tests start a redis-server of their own, on a free port; without one they fail.
.PHONY: .need-redis
.need-redis:
	@if command -v redis-server >/dev/null; then \
		: ; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing redis-server from the distribution's packages ..."; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null; \
	else \
		echo "The tests start a redis-server of their own. Install it first, for example:"; \
		echo "  sudo apt-get install redis-server"; \
		exit 1; \
	fi

# The tests restart sidecars behind HAProxy, and have systemd look at its unit.
.PHONY: .need-deploy
.need-deploy:
	@if { command -v haproxy || test -x /usr/sbin/haproxy; } >/dev/null && command -v systemd-analyze >/dev/null; then \
		: ; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing haproxy and systemd from the distribution's packages ..."; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy systemd >/dev/null; \
	else \
		echo "The tests start a haproxy of their own and ask systemd-analyze. Install them first, for example:"; \
		echo "  sudo apt-get install haproxy systemd"; \
		exit 1; \
	fi

# The tests render the manifests by kubectl, which Debian has only in a version that knows no components.
.PHONY: .need-kubectl
.need-kubectl: .venv/.dev
	@$(BIN)/python -m tests.deploy.kubectl $(BIN)/kubectl

# Clients that the tests bring to us by HTTPS_PROXY, and what makes network namespaces and redirects in them.
OUTBOUND := nodejs curl nftables iptables iproute2
.PHONY: .need-outbound
.need-outbound:
	@if command -v node >/dev/null && command -v curl >/dev/null && PATH="$$PATH:/usr/sbin:/sbin" && \
		command -v nft >/dev/null && command -v iptables >/dev/null && command -v ip >/dev/null; then \
		: ; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $(OUTBOUND) from the distribution's packages ..."; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(OUTBOUND) >/dev/null; \
	else \
		echo "The tests start these, and redirect connections in network namespaces of their own, as root. Install them:"; \
		echo "  sudo apt-get install $(OUTBOUND)"; \
		exit 1; \
	fi

# The tests check the alerts by promtool, and have a Prometheus and an Alertmanager of their own watch two sidecars.
WATCHERS := prometheus prometheus-alertmanager
.PHONY: .need-prometheus
.need-prometheus:
	@if command -v prometheus >/dev/null && command -v promtool >/dev/null && \
		command -v prometheus-alertmanager >/dev/null; then \
		: ; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $(WATCHERS) from the distribution's packages ..."; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(WATCHERS) >/dev/null; \
	else \
		echo "The tests start these on ports of their own. Install them first, for example:"; \
		echo "  sudo apt-get install $(WATCHERS)"; \
		exit 1; \
	fi

# What the bench compares with, all started by itself on free ports. Where one of them cannot be had, the bench runs
# without it and says what was not measured.
PEERS := redis-server nginx libnginx-mod-http-lua lua-nginx-redis haproxy
.PHONY: .want-peers
.want-peers:
	@if command -v redis-server >/dev/null && [ -e /usr/lib/nginx/modules/ngx_http_lua_module.so ] && \
		[ -e /usr/share/lua/5.1/nginx/redis.lua ] && { command -v haproxy || test -x /usr/sbin/haproxy; } >/dev/null; then \
		: ; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $(PEERS) from the distribution's packages ..."; \
		{ apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PEERS) >/dev/null; } || \
		echo "That failed: routes that need them are not measured."; \
	else \
		echo "Some routes are not measured without these packages:"; \
		echo "  sudo apt-get install $(PEERS)"; \
	fi

# Clients that `make test` tries if they are installed. `make clients` installs them, and none may be missing then.
CLIENTS := wget libwww-perl liblwp-protocol-https-perl php-cli php-curl ruby golang-go default-jdk-headless
.PHONY: .need-clients
.need-clients:
	@if command -v wget >/dev/null && command -v lwp-request >/dev/null && command -v php >/dev/null && \
		command -v ruby >/dev/null && command -v go >/dev/null && command -v keytool >/dev/null; then \
		: ; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $(CLIENTS) from the distribution's packages ..."; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CLIENTS) >/dev/null; \
	else \
		echo "These clients pay through us. Install them first, for example:"; \
		echo "  sudo apt-get install $(CLIENTS)"; \
		exit 1; \
	fi
