"""A replicated log: `produce` with acks=all and `fetch` with min_bytes, parked in a purgatory.

A broker leads partitions of topics. Producers append records and, with acks=all, wait until every
in-sync replica has fetched them. Consumers and followers fetch, and wait until there is enough to
read. No request sleeps, polls or has its own task: a produce watches `produce:<partition>`, a fetch
`fetch:<partition>`, and every change of a partition checks its keys.

    python -m examples.acks_all

demonstrates it over HTTP: `app` is the broker, `client` and `follower` talk to it.

Source: Kafka's ReplicaManager, Partition, DelayedProduce and DelayedFetch.
"""
