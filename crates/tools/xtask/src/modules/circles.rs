//! Circles among the modules of a crate.
//!
//! A module is a file. The parts of a folder are its own file and the folders of its children; no
//! circle of modules may go through two parts. Left out is what a module and its child take from
//! each other: a parent is made of its children. Two folders may take from each other as long as no
//! module comes back to itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::arrows::Modules;

type Path = Vec<String>;

/// Modules of which each reaches every other.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Circle {
    pub modules: BTreeSet<Path>,
    /// The shortest way round that goes through two parts, first module last as well.
    pub chain: Vec<Path>,
}

/// Finds every circle, between the crate's modules first, inside folders after.
pub fn find(modules: &Modules) -> Vec<Circle> {
    let mut circles: Vec<Circle> = Vec::new();
    for folder in modules.files.keys() {
        for circle in in_folder(modules, folder) {
            if circles.iter().all(|other| other.modules != circle.modules) {
                circles.push(circle);
            }
        }
    }
    circles
}

/// The circles that go through two parts of one folder.
fn in_folder(modules: &Modules, folder: &Path) -> Vec<Circle> {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in modules.arrows.keys() {
        let is_inside = from.starts_with(folder) && to.starts_with(folder);
        let is_family = |parent: &Path, child: &Path| {
            parent == folder && parent_of(modules, child) == Some(folder.as_slice())
        };
        if is_inside && !is_family(from, to) && !is_family(to, from) {
            next.entry(from).or_default().push(to);
        }
    }
    let reach: BTreeMap<&Path, BTreeSet<&Path>> = next
        .keys()
        .map(|from| (*from, way(&next, from, None).into_keys().collect()))
        .collect();
    let mut circles = Vec::new();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for (start, ahead) in &reach {
        let comes_back = |module: &&Path| reach.get(module).is_some_and(|of| of.contains(start));
        let together: BTreeSet<&Path> = ahead.iter().copied().filter(comes_back).collect();
        let is_new = !together.is_empty() && seen.is_disjoint(&together);
        seen.extend(&together);
        if is_new && let Some(chain) = shortest(&next, &together, folder) {
            let modules = together.into_iter().cloned().collect();
            circles.push(Circle { modules, chain });
        }
    }
    circles
}

/// The shortest circle in `together` with an arrow from one part of the folder to another.
fn shortest(
    next: &BTreeMap<&Path, Vec<&Path>>,
    together: &BTreeSet<&Path>,
    folder: &Path,
) -> Option<Vec<Path>> {
    let part = |module: &Path| module.get(folder.len()).cloned();
    let mut best: Option<Vec<Path>> = None;
    for from in together {
        let targets = next.get(from).into_iter().flatten();
        let crossing = targets.filter(|to| together.contains(*to) && part(from) != part(to));
        for to in crossing {
            let mut chain = vec![(*from).clone()];
            let back = way(next, to, Some(from));
            // Steps from `from` back to `to`, read against the arrows.
            let mut steps = vec![*from];
            while let Some(before) = steps.last().and_then(|last| back.get(last))
                && steps.last() != Some(to)
            {
                steps.push(before);
            }
            chain.extend(steps.into_iter().rev().cloned());
            if best.as_ref().is_none_or(|best| chain.len() < best.len()) {
                best = Some(chain);
            }
        }
    }
    best
}

/// Everything that `from` reaches, each with the module from which it is reached first; up to
/// `until`, if there is one.
fn way<'a>(
    next: &BTreeMap<&'a Path, Vec<&'a Path>>,
    from: &'a Path,
    until: Option<&Path>,
) -> BTreeMap<&'a Path, &'a Path> {
    let mut before = BTreeMap::new();
    let mut waiting = VecDeque::from([from]);
    while let Some(module) = waiting.pop_front() {
        for to in next.get(module).into_iter().flatten().copied() {
            if !before.contains_key(to) {
                before.insert(to, module);
                waiting.push_back(to);
            }
            if until == Some(to) {
                return before;
            }
        }
    }
    before
}

/// The nearest module around that has a file.
fn parent_of<'a>(modules: &Modules, module: &'a [String]) -> Option<&'a [String]> {
    let mut above = module;
    loop {
        above = above.split_last()?.1;
        if modules.files.contains_key(above) {
            return Some(above);
        }
    }
}
