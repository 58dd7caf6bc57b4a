//! Device memory: memory of the host, whose bounds are known.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::stats::{self, lock};

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: i32 = 1;

/// By address. A range stays alive while it is in use.
static RANGES: Mutex<BTreeMap<u64, Arc<Mutex<Vec<u8>>>>> = Mutex::new(BTreeMap::new());

/// Some bytes of one range.
#[derive(Clone)]
pub struct Place {
    memory: Arc<Mutex<Vec<u8>>>,
    start: usize,
    len: usize,
}

impl Place {
    pub fn read(&self) -> Vec<u8> {
        lock(&self.memory)[self.start..self.start + self.len].to_vec()
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let start = self.start + offset;
        lock(&self.memory)[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

pub fn allocate(bytes: usize) -> u64 {
    // Neither zeros nor numbers that look like a result.
    let memory = vec![0xa5_u8; bytes];
    // Far away from every address of the host: none can be used by accident.
    let mut ranges = lock(&RANGES);
    let end = ranges
        .iter()
        .next_back()
        .map_or(0x7000_0000_0000_0000, |(address, memory)| {
            address + lock(memory).len() as u64
        });
    let address = end.next_multiple_of(256) + 256;
    ranges.insert(address, Arc::new(Mutex::new(memory)));
    stats::add("memory", 1);
    address
}

pub fn free(address: u64) -> i32 {
    match lock(&RANGES).remove(&address) {
        None => INVALID_VALUE,
        Some(_) => {
            stats::add("memory", -1);
            0
        }
    }
}

/// The bytes at an address, if all of them were taken.
pub fn find(address: u64, len: usize) -> Option<Place> {
    let ranges = lock(&RANGES);
    let (begin, memory) = ranges.range(..=address).next_back()?;
    let start = (address - begin) as usize;
    let inside = start + len <= lock(memory).len();
    inside.then(|| Place {
        memory: memory.clone(),
        start,
        len,
    })
}
