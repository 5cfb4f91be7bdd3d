"""Paywitness carries payment calls to providers and knows what became of each one.

A **Call** is what the application asked of us. It becomes an **Operation**: one intended effect at the provider, under
one key, however many **Attempts** at the wire it takes. Each attempt leaves **Evidence**: the last phase reached, the
bytes written, the response or fault, and no judgement. Judging it gives a class and an **effect** (none, possible,
done); the attempts whose effect is possible are the operation's **Doubt**. The **State** says where the operation
stands, and only the lifecycle table moves it. A **Decision** says what to do next and because of which rule, within
what the **ProviderContract** promises and the **Policy** chooses. The **Journal** is the durable record of all of it.
An **Inquiry** asks the provider what became of an operation; **Review** is where only a person or new evidence can end
it.

The life of a call: the edge turns bytes into a Call; the policy book matches it to a Policy; its keys and fingerprint
identify it; the journal claims it and writes SENDING before the first byte may leave, or answers from what it already
knows; the upstream client makes one attempt and returns Evidence, never an exception for the network's sake; classify,
advance and decide turn that into a state and a decision; the journal records them; if the decision, the budget and the
caller's deadline allow, the same bytes go out again under the same key; and at last the Reply leaves through the edge,
after its record is durable. What is still in doubt then is a recorded doubt, never a guess.
"""
