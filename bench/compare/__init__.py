"""The comparison: the same faults and the same load, through Paywitness and through what else there is. `make compare`.

    scenarios   what goes wrong at the provider, when, and how long a run takes; pure
    lanes       who pays which way: the client, its keys, the proxy before it and how that is set up
    envoy       Envoy's configurations; nginx's and ours are in `peers`
    peers       the proxies as processes, one or several sidecars a lane; what cannot be had is not measured
    provider    the sandbox as a process, one for each lane of a group; it may have only so much strength
    broken      a sidecar of ours whose network is broken
    callers     the shop: a job that pays an order, and runs again when it was not told that it is paid
    clients     one run of a job: a plain client, one with a loop, tenacity, the stripe SDK
    staging     one scenario for one group of lanes: start, pay, let settle, ask, read the ledgers, end
    kept        what a run has measured so far, as a file
    figures     what was told against what the ledger shows; pure
    verdicts    the aims, and where a peer is better; pure
    report      figures to docs/comparison.md; pure
    pictures    figures to small SVG files; pure

The ledger of the sandbox is the only judge. Neither a proxy nor its journal has a say in what was charged.
"""
