"""Paywitness carries payment calls to providers and knows what became of each one.

A **Call** is what the application asked of us. It becomes an **Operation**: one intended effect at the provider, under
one key, however many **Attempts** it takes. Each attempt leaves **Evidence**: the last phase reached, the bytes
written, the response or fault, and no judgement. Classifying it gives a result class and an **effect** (none, possible,
done). The attempts whose effect is possible are the operation's **Doubt**. The **State** says where the operation is,
and only the lifecycle table moves it. A **Decision** says what to do next and because of which rule, within what the
**ProviderContract** promises and the **Policy** chooses. The **Journal** is the durable record of all of it. An
**Inquiry** asks the provider what became of an operation. An operation is in **Review** when only a person or new
evidence can end it.

The life of a call: the server turns bytes into a Call. The policy book matches it to a Policy. Its keys and fingerprint
identify it. The journal claims it and writes SENDING before the first byte may leave, or replies from what it already
knows. The upstream client makes one attempt and returns Evidence; a network failure is a value and never an exception.
Classify, advance and decide turn that into a state and a decision, and the journal records them. If the decision, the
budget and the caller's deadline allow it, the same bytes go out again under the same key. The Reply leaves through the
server after its record is durable. An outcome that is still unknown then is a recorded doubt, never a guess.

The rooms, from the innermost outwards. A room imports only from rooms above it in this list.

    core/                the pure values, tables and arithmetic
    clock                the only place that reads the time
    repeated_lines       the only place that bounds log lines which could repeat without end
    randomness           the only place that draws random numbers; the format of operation ids
    tasks                the only place that starts tasks
    option_defaults      every option of `paywitness run`, with its default
    secrets              encryption of what the journal stores; the identity secret
    policy/              YAML files to an immutable book of policies
    journal/             the durable record: SQLite for one sidecar, Redis for a fleet
    limits/              retry budgets, circuits and admission
    redis/               the connection to a Redis, for journal and limits
    upstream/            the HTTP/1.1 client to providers
    webhook_signatures/  the signature schemes of webhooks
    telemetry/           metrics, logs and traces
    transparent/         the local CA and the redirect rules
    engine/              the only room that both decides and acts
    server/              the listeners for callers and for webhooks
    admin/               the listener for operators
    tools/               doctor, policy test, policy diff, policy new
    wiring               builds every object, once
    process              starts, drains and stops a sidecar
    cli/                 the command line
    demo/                `paywitness demo`
    __main__             `python -m paywitness`
"""
