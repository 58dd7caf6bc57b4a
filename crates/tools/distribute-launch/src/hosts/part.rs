//! What a host brings to the job. The relay checks it when a launcher joins late: a misfit found
//! only when all are ready for a start would end the job for all.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How many processes of each kind a host starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub workers: usize,
    pub parameter_servers: usize,
    pub has_evaluator: bool,
}

impl Part {
    /// Whether the host starts nothing, except perhaps the chief.
    fn is_empty(&self) -> bool {
        *self == Part::default()
    }

    /// Why a host with this part does not fit the `others` that are connected, in a job of `hosts`
    /// hosts.
    pub fn misfit(
        self,
        host: usize,
        others: &BTreeMap<usize, Part>,
        hosts: usize,
    ) -> Option<String> {
        let mut evaluators = others.iter().filter(|(_, part)| part.has_evaluator);
        if let Some((other, _)) = evaluators.next().filter(|_| self.has_evaluator) {
            return Some(format!(
                "host {host} starts an evaluator, as host {other} does: ask for it on one host"
            ));
        }
        // Hosts that are still missing may bring the rest.
        if others.len() + 1 < hosts {
            return None;
        }
        let all = || others.values().chain([&self]);
        let first = if host == 0 {
            Some(&self)
        } else {
            others.get(&0)
        };
        if all().all(|part| part.workers == 0) {
            return Some(format!(
                "with host {host} no host starts a worker: give --workers 1 or more there"
            ));
        }
        let has_servers = all().any(|part| part.parameter_servers > 0);
        (!has_servers && first.is_some_and(Part::is_empty)).then(|| {
            format!(
                "with host {host} no host has the parameter servers for which host 0 would start \
                 the chief: give --ps 1 or more there"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_fits_unless_the_whole_would_have_two_evaluators_or_lack_something() {
        let part = |workers, parameter_servers, has_evaluator| Part {
            workers,
            parameter_servers,
            has_evaluator,
        };
        let misfit = |own: Part, others: &[Part], hosts| {
            let others = others
                .iter()
                .copied()
                .enumerate()
                .map(|(host, part)| (host + 1, part))
                .collect();
            own.misfit(0, &others, hosts)
        };
        let none = part(0, 0, false);
        for (own, others, hosts, why) in [
            (part(1, 0, true), vec![part(1, 0, false)], 2, ""),
            (
                part(1, 0, true),
                vec![part(1, 0, true)],
                3,
                "evaluator, as host 1",
            ),
            (none, vec![part(0, 1, false)], 3, ""),
            (none, vec![part(0, 1, false)], 2, "no host starts a worker"),
            (none, vec![part(1, 1, false)], 2, ""),
            (
                none,
                vec![part(1, 0, false)],
                2,
                "no host has the parameter servers",
            ),
        ] {
            let said = misfit(own, &others, hosts).unwrap_or_default();
            assert!(
                said.contains(why) && said.is_empty() == why.is_empty(),
                "{said}"
            );
        }
    }
}
