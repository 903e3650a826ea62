"""A storm over a simulation: faults one by one, which are timed, and many at once."""

from __future__ import annotations

from tests.ownership.simulation.network import Faults
from tests.ownership.simulation.simulation import (
    GROUPS,
    LEASE_S,
    REBALANCE_S,
    RETENTION_S,
    SESSION_S,
    Report,
    Simulation,
)

# The longest fault.
_LONGEST_S = 4 * LEASE_S
# Members that come and go during a storm are waited for until their sessions or the rebalance end.
_CALM_S = _LONGEST_S + SESSION_S + REBALANCE_S


def run_storm(seed: int, faults: int) -> tuple[Report, list[str]]:
    """Return what was done, and every promise that was broken."""
    simulation = Simulation(seed)
    storm = _Storm(simulation)
    try:
        simulation.settle(_CALM_S)
        while simulation.report.faults.total() < faults and not simulation.ledger.faults:
            [storm.replace_owner, storm.stop_while_joining, storm.blow, storm.blow][
                simulation.world.random.randrange(4)
            ]()
            simulation.check_hosts()
        return simulation.finish(), simulation.ledger.faults
    finally:
        simulation.close()


class _Storm:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._random = simulation.world.random

    def replace_owner(self) -> None:
        """Kill, suspend or cut off an owner, and measure until its members have joined again."""
        simulation, chance = self._simulation, self._random
        # A lease may end now, so that nobody owns it for a moment.
        group = chance.choice(GROUPS)
        owner, epoch = simulation.owner(group), simulation.epoch(group)
        if owner is None:
            simulation.ledger.faults.append(f"{group}: settled, and nobody owns it")
            return
        seconds = chance.uniform(1.5, 4) * LEASE_S
        fault = chance.choice(
            [simulation.kill, simulation.stop, simulation.cut_redis, simulation.restart]
        )
        fault(owner, seconds)
        took = simulation.rejoin(group, epoch, SESSION_S)
        simulation.report.slowest = max(simulation.report.slowest, took)
        self._calm_down()

    def stop_while_joining(self) -> None:
        """Suspend an owner with parked joins, for longer than the members wait for it."""
        simulation, chance = self._simulation, self._random
        group = chance.choice(GROUPS)
        owner, epoch = simulation.owner(group), simulation.epoch(group)
        if owner is None:
            return
        simulation.replace_member(group)
        simulation.world.run(chance.uniform(0, 0.5 * SESSION_S))
        simulation.stop(owner, 3 * SESSION_S)
        # The next owner waits for the session of the member that crashed.
        simulation.rejoin(group, epoch, 2 * SESSION_S)
        simulation.world.run(SESSION_S)
        self._calm_down()

    def blow(self) -> None:
        """Let several things happen at once, on a network that loses, delays and repeats."""
        simulation, chance = self._simulation, self._random
        noisy = Faults()
        noisy.lost_request, noisy.lost_reply = 0.02, 0.02
        noisy.late_request, noisy.repeated = 0.05, 0.1
        simulation.redis.faults = noisy
        if chance.random() < 0.3:
            # When the sessions have ended, and then the retention of an empty group.
            forgotten_s = SESSION_S + RETENTION_S
            group = chance.choice(GROUPS)
            simulation.replace_members(group, forgotten_s + chance.uniform(-1, 5))
        for _ in range(chance.randint(2, 6)):
            worker = chance.choice(list(simulation.workers.values()))
            seconds = chance.uniform(0.1, _LONGEST_S)
            match chance.randrange(12):
                case 0 | 1:
                    simulation.kill(worker, min(seconds, 3.0))
                case 2 | 3 | 4:
                    simulation.stop(worker, seconds)
                case 5 | 6:
                    simulation.cut_redis(worker, seconds)
                case 7 | 8:
                    simulation.cut_members(worker, seconds)
                case 9:
                    simulation.restart(worker, 1.0)
                case 10:
                    simulation.stop_redis(min(seconds, 3 * LEASE_S))
                case 11 if chance.random() < 0.3:
                    simulation.flush_redis()
                case 11:
                    simulation.fail_over(seconds)
            simulation.world.run(chance.uniform(0, 2))
        simulation.world.run(_LONGEST_S)
        simulation.redis.faults = Faults()
        self._calm_down()

    def _calm_down(self) -> None:
        # What was repeated or late has arrived, and who was suspended has resumed.
        self._simulation.world.run(_LONGEST_S)
        self._simulation.settle(_CALM_S)
