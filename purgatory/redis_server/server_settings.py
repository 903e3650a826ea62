"""Server settings: whether a server keeps what it acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis.exceptions import BusyLoadingError

# The first with all commands, and the replication of effects, that the steps need.
_OLDEST = (6, 2)
_NEARLY_FULL = 0.9
# So long, a primary that has lost its replicas goes on acknowledging.
_MAX_LAG_S = 2


@dataclass(slots=True)
class ServerSettings:
    """What is wrong with the settings: `faults` lose or refuse what is kept, `warnings` may."""

    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    kept: str = "jobs"
    """What is kept there, as the sentences say it."""
    fsync: str = "fsync=True"
    """The option that waits for the disk; empty if there is none."""
    has_slots: bool = False
    """Whether the server is a node of a cluster."""

    @classmethod
    def of(
        cls,
        info: dict[str, str],
        config: dict[str, str],
        *,
        is_fsynced: bool,
        is_cluster_client: bool,
        kept: str = "jobs",
        fsync: str = "fsync=True",
    ) -> ServerSettings:
        """Return what is wrong, given the fields of INFO and, as far as is known, of CONFIG.

        Raises BusyLoadingError for a server that still reads its file: it has not all settings yet.
        """
        if info.get("loading", "0") != "0":
            # As for any other command. It says that it has no append-only file.
            raise BusyLoadingError("the server is loading the dataset in memory")
        has_slots = info.get("cluster_enabled") == "1"
        settings = cls(kept=kept, fsync=fsync, has_slots=has_slots)
        settings._judge_server(info, is_cluster_client)
        settings._judge_memory(info)
        settings._judge_persistence(info, config.get("appendfsync"), is_fsynced)
        settings._judge_replicas(info, config.get("min-replicas-max-lag"))
        return settings

    def add(self, other: ServerSettings) -> None:
        """Add what is wrong with another server: several may say the same."""
        self.faults += [each for each in other.faults if each not in self.faults]
        self.warnings += [each for each in other.warnings if each not in self.warnings]
        self.has_slots |= other.has_slots

    def _judge_server(self, info: dict[str, str], is_cluster_client: bool) -> None:
        # Valkey also says with which Redis it is compatible.
        version = info.get("redis_version", "0")
        parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if parts < _OLDEST:
            self.faults.append(
                f"The server is Redis {version}: {self.kept} need Redis 6.2 or Valkey; upgrade it"
            )
        if info.get("role") == "slave":
            self.faults.append(
                "The server is a replica, which takes no writes: connect to its primary"
            )
        if self.has_slots and not is_cluster_client:
            self.warnings.append(
                "The server is a node of a cluster and the client knows that node only: give a "
                "URL that begins with redis+cluster://, or a RedisCluster of "
                "redis.asyncio.cluster, unless the node has all slots"
            )

    def _judge_memory(self, info: dict[str, str]) -> None:
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            self.faults.append(
                f"maxmemory-policy is {policy}, which evicts {self.kept} in silence when memory is "
                f"full: set it to noeviction, and give {self.kept} a server that is no cache"
            )
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if limit and used > _NEARLY_FULL * limit:
            self.warnings.append(
                f"The server uses {used} of {limit} bytes: when it is full, new {self.kept} are "
                "refused; raise maxmemory or keep less history"
            )

    def _judge_persistence(
        self, info: dict[str, str], append_fsync: str | None, is_fsynced: bool
    ) -> None:
        is_logged = info.get("aof_enabled") == "1"
        if is_fsynced and not is_logged:
            self.faults.append(
                f"{self.fsync} waits for the append-only file, and appendonly is no: set it to yes"
            )
        elif not is_logged:
            self.warnings.append(
                f"appendonly is no: a crash of the server loses all {self.kept} since its last "
                "snapshot, if it makes any; set it to yes"
            )
        elif is_fsynced and append_fsync == "no":
            self.faults.append(
                f"{self.fsync} waits until the server writes to disk, and appendfsync is no: set "
                "it to everysec or always"
            )
        elif self.fsync and append_fsync in ("everysec", "no") and not is_fsynced:
            loss = "the last second" if append_fsync == "everysec" else "what is not on disk yet"
            self.warnings.append(
                f"appendfsync is {append_fsync}: a crash of the machine loses {loss}; set it to "
                f"always, or give {self.fsync}"
            )
        if info.get("aof_last_write_status", "ok") != "ok":
            self.faults.append(
                "The server cannot write its append-only file: see its log, and whether its disk "
                "is full"
            )

    def _judge_replicas(self, info: dict[str, str], max_lag: str | None) -> None:
        # INFO has this field only if writes wait for replicas at all.
        is_bounded = "min_slaves_good_slaves" in info and int(max_lag or 0) <= _MAX_LAG_S
        if int(info.get("connected_slaves", 0)) and not is_bounded:
            self.warnings.append(
                f"The server has replicas, and a failover loses all {self.kept} that the old "
                "primary acknowledges until it notices: set min-replicas-to-write to 1 and "
                f"min-replicas-max-lag to {_MAX_LAG_S} or less on each server"
            )
