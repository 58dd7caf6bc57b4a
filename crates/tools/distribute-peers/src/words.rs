//! Ranks and numbers in words.

/// A rate in bytes per second, with three digits.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    for (unit, size) in [("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)] {
        if bytes_per_second >= size {
            return format!("{} {unit}", three_digits(bytes_per_second / size));
        }
    }
    format!("{bytes_per_second:.0} B/s")
}

/// A number below a thousand with three digits.
pub(crate) fn three_digits(number: f64) -> String {
    match number {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    }
}

/// Ranks in words: `rank 1`, `ranks 0, 1 and 3`.
pub(crate) fn ranks(all: &[usize]) -> String {
    const SHOWN: usize = 12;
    let text = |some: &[usize]| {
        let all: Vec<String> = some.iter().map(ToString::to_string).collect();
        all.join(", ")
    };
    match all {
        [] => "no rank".to_string(),
        [one] => format!("rank {one}"),
        [first @ .., last] if all.len() <= SHOWN => format!("ranks {} and {last}", text(first)),
        _ => {
            let (shown, more) = all.split_at(SHOWN);
            format!("ranks {} and {} more", text(shown), more.len())
        }
    }
}
