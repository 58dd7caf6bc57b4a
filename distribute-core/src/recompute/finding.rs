//! What a check has found.

use super::Recomputation;
use crate::wrong_gradient::WrongGradient;

/// The name of this host, a number for each byte.
pub(super) fn own_host() -> Vec<i64> {
    let name = gethostname::gethostname();
    name.as_encoded_bytes()
        .iter()
        .map(|byte| i64::from(*byte))
        .collect()
}

fn host(bytes: &[i64]) -> String {
    let bytes = bytes.iter().filter_map(|byte| u8::try_from(*byte).ok());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

impl Recomputation {
    /// What two or three results say: of the replica that is checked, and of those that have
    /// computed it again. The first two differ.
    pub(super) fn finding(
        &self,
        results: &[Vec<i64>],
        hosts: &[Vec<i64>],
        names: &[String],
    ) -> WrongGradient {
        let mut computed_by = vec![self.replica];
        computed_by.extend(&self.by);
        let third = results.get(2);
        // The first two differ, so the third one agrees with one of them at most.
        let odd = (0..2).find(|index| third == results.get(1 - index) && third.is_some());
        let replicas = match odd {
            Some(odd) => vec![computed_by[odd]],
            None => computed_by.clone(),
        };
        let pairs = results[0].iter().zip(&results[1]);
        let first = pairs.clone().position(|(one, other)| one != other);
        let first = first.unwrap_or(results[0].len().min(results[1].len()));
        let of = |replica: &usize| hosts.get(*replica).map_or(String::new(), |it| host(it));
        WrongGradient {
            step: self.step,
            checked: self.replica,
            ranks: replicas.iter().map(|id| self.rank(*id)).collect(),
            hosts: replicas.iter().map(of).collect(),
            has_majority: odd.is_some(),
            parameter: names.get(first).cloned().unwrap_or_default(),
            computed_by,
            replicas,
        }
    }
}
