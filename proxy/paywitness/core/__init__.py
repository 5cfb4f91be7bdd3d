"""The pure core: values, tables and arithmetic. No async, no clock, no randomness, no logging, no third-party import.

`lifecycle` holds the states of an operation, `decide` chooses the next step, `classify` reads a response. Nothing here
acts: time, random draws and compiled expressions come in as values and plain callables.

what comes in
    allowed_hosts      which names a listener serves, and requests of which web pages
    call               the application's request, and its Paywitness-* options
    account_rules      how accounts and their owners are distinguished
    account_choice     which account of `accounts:` a call acts for
    policy             a provider's policy file as values: operations, routes, timeouts, priorities
    payment            a payment: its names and the keys of its rows, its numbers and movements
    payment_changes    how evidence changes a payment: posted and returned movements, totals
    payment_rollback   a payment after an operation of it was put back
    payment_claims     limits, serialised movements, and when an intent is free again
    payment_evidence   the names, totals and dates of a payment in a response or an object
    payment_rules      which payment an operation acts on, and how its numbers are read and held
    payout_rules       caps, approval and check of payouts
    policy_defaults    the values that a policy file leaves out: retries, timeouts, budgets, circuit, all of it
    provider_contract  the provider's promises for one operation: its key, how long it remembers it
    recognise          from a call to its operation, or to a refusal before anything is written
    payout_claims      which caps count a payout, and what must be approved
    identity           which operation a call is: keys, fingerprint, guard
    evidence           the facts about one attempt on the wire
    provider_time      the provider's clock, by the Date of its responses
    webhook_event      how a provider's webhook events are read, and how their operations are found
what is true
    ages               how long ago something happened, by the smallest and by the largest reading of all clocks
    levels             which rules every sidecar of a journal keeps, and when they begin
    operation          one intended effect at the provider, its states, its history
    lifecycle          the events and the transition table
    consequences       what a new state implies: due time, lease, key, request, announcement
    credential_owners  who owns a credential, and whether two belong to one owner
    claim              who may send under a key; the reply to a duplicate
    payout             what counts against caps, what an approval binds, how a payout is announced
    guard              keeps two operations off the same money
    result             result classes, effects, the classification of one attempt
    classify           from evidence to a result class and an effect
    inquiry            inquiries about an operation at the provider; when absence is proven
    external_evidence  how inquiries, webhook events, cancels and operators change an operation
what to do
    decide             the ordered rules: retry, inquire, wait, review, stop
    fallback           after which ends another route may be tried, and the verdict on each route
    retry              backoff, jitter, Retry-After
    budget             how many retries the fleet may make (mirrored in limits/lua/budget.lua)
    circuit            the circuit breaker (mirrored in limits/lua/circuit.lua)
    holds              which calls a provider asked to wait, and until when (mirrored in limits/lua/circuit.lua)
    admission          the concurrency limit and the admission queue of a provider
    provider_health    the signs of the provider's health in an attempt
    operator_actions   what an operator may do, and what to do about an incident
    payment_corrections  an operator's corrections of a payment: that it exists, or one of its numbers
what goes out
    reply              the provider's response passed on, or a problem of ours
    advice             the advice for the end customer
    limit_info         which limit held a call back, as its reply shows it
    problems           the types, texts and bodies of our problems
    timeline_words     the words for a change in a timeline; durations in words
    was_it_charged     "was it charged?", in one sentence
    payment_words      the state of a payment, in numbers and in sentences
    announcements      the events of the outbox, as CloudEvents
    template           paths and texts filled from an operation
    redact             masks secrets in every log line and page
small values
    bodies/            JSON, form and XML bodies: read into a tree, one value spliced in
    money              an amount in minor units, with its currency
    addresses          which network addresses are private
    credential_and_hop_headers  credential and hop-by-hop headers, the token alphabet, the trace context
    errors             our own exceptions
    record             the decorator of our values: frozen for the type checker, not at run time
"""
