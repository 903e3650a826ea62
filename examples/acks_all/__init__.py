"""A replicated log: `produce` with acks=all and `fetch` with min_bytes, parked in a purgatory.

A broker leads partitions of topics. Producers append and, with acks=all, wait until every replica
that is in sync has fetched what they appended; consumers and followers fetch, and wait until there
is enough to read. No request sleeps, polls or has a task of its own: a produce watches
`produce:<partition>`, a fetch `fetch:<partition>`, and what happens to a partition checks its keys.

    python -m examples.acks_all

shows it over HTTP: `app` is the broker, `client` and `follower` are those who talk to it.

Source: Kafka's ReplicaManager, Partition, DelayedProduce and DelayedFetch.
"""
