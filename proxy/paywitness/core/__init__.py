"""The pure core: values, tables and arithmetic. No async, no clock, no randomness, no logging, no third-party import.

`lifecycle` says what is true now, `decide` what to do next, `classify` what a response means. Nothing here performs
anything: time, random draws and compiled expressions come in as values and plain callables.

what comes in
    allowed_hosts      under which names, and by which web pages, a listener may be asked
    call               what the application asked of us, and its Paywitness-* options
    account_rules      how accounts and their owners are told apart
    account_choice     which account of `accounts:` a call acts for
    policy             a provider's policy file as values: operations, routes, timeouts, priorities
    payment            a payment: its names and the keys of its rows, its numbers and movements
    payment_changes    what evidence makes of a payment: what is posted, returned, shown
    payment_rollback   what an operation that is put back tells of its payment
    payment_claims     limits, what is serialised, and what frees an intent
    payment_evidence   what a response or an object shows of a payment
    payment_rules      which payment an operation acts on, and how its numbers are read and held
    payout_rules       caps, approval and check of payouts
    policy_defaults    what holds if a policy file is silent: retries, timeouts, budgets, circuit, all of it
    provider_contract  what a provider promises of one operation: its key, how long it remembers it
    recognise          from a call to its operation, or to a refusal before anything is written
    payout_claims      which caps count a payout, and what must be approved
    identity           which operation a call is: keys, fingerprint, guard
    evidence           what was seen of one attempt on the wire
    provider_time      the provider's clock, by the Date of its responses
    webhook_event      what a provider's webhook says, and how its operation is found
what is true
    ages               how long ago something was, by the smallest and by the largest reading of all clocks
    levels             which rules every sidecar of a journal keeps, and when they begin
    operation          one intended effect at the provider, its states, its history
    lifecycle          the events and the transition table
    consequences       what a new state implies: due time, lease, key, request, announcement
    credential_owners  whose a credential is, and what one is to another
    claim              who may send under a key; what a duplicate is told
    payout             what counts against caps, what an approval binds, what is announced of a payout
    guard              what keeps two operations off the same money
    result             result classes, effects, the classification of one attempt
    classify           from evidence to a result class and an effect
    inquiry            asking the provider what became of an operation; when absence is proven
    external_evidence  what inquiries, webhook events, cancels and operators change
what to do
    decide             the ordered rules: retry, inquire, wait, review, stop
    fallback           for which ends another route may be taken, and what became of each route
    retry              backoff, jitter, Retry-After
    budget             how many retries the fleet may make (mirrored in limits/lua/budget.lua)
    circuit            the circuit breaker (mirrored in limits/lua/circuit.lua)
    holds              whom a provider asked to wait, and until when (mirrored in limits/lua/circuit.lua)
    admission          the concurrency limit and the admission queue of a provider
    provider_health    what an attempt shows of the provider's health
    operator_actions   what an operator may do, and what to do about an incident
    payment_corrections  what an operator may make a payment say: that it exists, what a number of it is
what goes out
    reply              the provider's response passed on, or a problem of ours
    advice             what the end customer may be told
    limit_info         which limit held a call back, as its reply tells it
    problems           the types, texts and bodies of our problems
    timeline_words     what a change is called in a timeline; durations as people say them
    was_it_charged     "was it charged?", in one sentence
    payment_words      what stands of a payment, in numbers and in sentences
    announcements      what the outbox publishes, as CloudEvents
    template           paths and texts filled from an operation
    redact             what is masked in every log line and page
small values
    bodies/            JSON, form and XML bodies: read into a tree, one value spliced in
    money              an amount in minor units, with its currency
    addresses          which network addresses are private
    credential_and_hop_headers  credential and hop-by-hop headers, the token alphabet, the trace context
    errors             the exceptions of our own house
    record             the decorator of our values: frozen for the type checker, not at run time
"""
