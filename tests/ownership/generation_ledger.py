"""Who handed out which generation, written down when it happens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class GenerationLedger:
    """Every generation of every group; `faults` has what must not happen."""

    knows_commits: bool = False
    """True if `commit` is called, so that nothing may be handed out before."""
    # {(group, generation): the epochs of its owners}
    handed_out: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    # {(group, member): the latest generation that it was told}
    latest: dict[tuple[str, str], int] = field(default_factory=dict)
    # {group: the latest commit that the store did: generation and epoch}
    committed: dict[str, tuple[int, int]] = field(default_factory=dict)
    commits: set[tuple[str, int, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def commit(self, group: str, generation: int, epoch: int) -> None:
        """Note that the store did a commit."""
        before = self.committed.get(group, (0, 0))
        is_repeated = (generation, epoch) == before
        if not is_repeated and (generation <= before[0] or epoch < before[1]):
            self.faults.append(f"{group}: {generation} by {epoch} committed after {before}")
        self.committed[group] = generation, epoch
        self.commits.add((group, generation, epoch))

    def hand_out(self, group: str, generation: int, epoch: int) -> None:
        """Note that an owner handed out a generation."""
        epochs = self.handed_out.setdefault((group, generation), set())
        epochs.add(epoch)
        if self.knows_commits and (group, generation, epoch) not in self.commits:
            self.faults.append(f"{group}: generation {generation} by {epoch} is not committed")
        if len(epochs) > 1:
            self.faults.append(f"{group}: generation {generation} by the owners {sorted(epochs)}")

    def receive(self, group: str, member: str, generation: int) -> None:
        """Note that a member has a generation."""
        before = self.latest.get((group, member), 0)
        if generation < before:
            self.faults.append(f"{group}: {member} got generation {generation} after {before}")
        self.latest[group, member] = generation

    def check_order(self) -> None:
        """Note owners whose generations are not all above those of earlier owners."""
        before = ("", 0)
        for (group, generation), epochs in sorted(self.handed_out.items()):
            if before[0] == group and min(epochs) < before[1]:
                self.faults.append(
                    f"{group}: generation {generation} by the owner {min(epochs)}, after one by "
                    f"{before[1]}"
                )
            before = (group, max(epochs))
