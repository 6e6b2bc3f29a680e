"""Chains, where the best schedule is known by other means: a dynamic program in the manner of Rotor (Beaumont et al.
2019) that shares no code with the exact model.

Forward step i makes aᵢ from aᵢ₋₁; the turn makes the first gradient from the last of them; backward step i makes gᵢ₋₁
from gᵢ and aᵢ₋₁. Only schedules count that keep a checkpoint until it is read for the last time; with all aᵢ of one
size no others are better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from smidgen.compiler.planner.cost import Prices
from smidgen.compiler.planner.problem import NEVER, Problem, Step


@dataclass(frozen=True, slots=True)
class Chain:
    value_bytes: tuple[int, ...]  # a₀ … aₙ; a₀ is fetched and never made again
    grad_bytes: tuple[int, ...]  # g₀ … gₙ
    forward_s: tuple[float, ...]  # of n steps
    backward_s: float  # of each

    def problem(self, prices: Prices) -> Problem:
        n = len(self.forward_s)
        count = 2 * n + 2
        a, g = range(n + 1), range(n + 1, 2 * n + 2)
        steps = [Step(0, (), (a[0],), self.backward_s, 0, (), NEVER)]
        steps += [Step(i, (a[i - 1],), (a[i],), self.forward_s[i - 1], 0, (), count) for i in range(1, n + 1)]
        steps.append(Step(n + 1, (a[n],), (g[n],), self.backward_s, 0, (), NEVER))
        for i in range(n, 0, -1):
            steps.append(Step(len(steps), (a[i - 1], g[i]), (g[i - 1],), self.backward_s, 0, (), NEVER))
        makers = [*range(n + 1), *(2 * n + 1 - i for i in range(n + 1))]
        names = [*(f"a{i}" for i in a), *(f"g{i}" for i in range(n + 1))]
        return Problem(tuple(steps), self.value_bytes + self.grad_bytes, tuple(names), tuple(makers), 0, prices)

    def least_extra_s(self, budget_bytes: int) -> float:
        """Infinite if no such schedule fits."""
        n = len(self.forward_s)
        a, g = self.value_bytes, (*self.grad_bytes, 0)  # behind the last one: no gradient before the turn

        @cache
        def seconds(s: int, t: int, room: int) -> float:
            """Forward seconds to go back from gₜ to gₛ, with aₛ and gₜ there; the bytes of aₛ are not in `room`."""
            if t == s + 1:
                return 0.0 if g[t] + g[s] <= room else math.inf
            best, ahead, high = math.inf, 0.0, 0
            for j in range(s + 1, t):
                ahead += self.forward_s[j - 1]
                high = max(high, g[t] + a[j] + (a[j - 1] if j - 1 > s else 0))
                if high > room:
                    break
                best = min(best, ahead + seconds(j, t, room - a[j]) + seconds(s, j, room))
            return best

        return seconds(0, n + 1, budget_bytes - a[0]) - sum(self.forward_s)
