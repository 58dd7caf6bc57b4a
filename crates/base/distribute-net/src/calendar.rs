//! Calendar times, in seconds since 1970, without leap seconds.
//!
//! Years begin with March here, so that a leap day is the last day of one; an era has 400 of
//! them (Howard Hinnant, "chrono-compatible low-level date algorithms").

const DAY_SECONDS: i64 = 86_400;
/// Days from 1 March of the year 0 to 1970.
const DAYS_TO_1970: i64 = 719_468;
const DAYS_OF_ERA: i64 = 146_097;

/// A time to the minute in the Gregorian calendar: `2026-11-28 16:39 UTC`.
///
/// `seconds` are counted from 1970 (UTC) and may be negative.
pub fn shown(seconds: i64) -> String {
    let (days, second) = (
        seconds.div_euclid(DAY_SECONDS),
        seconds.rem_euclid(DAY_SECONDS),
    );
    let days = days + DAYS_TO_1970;
    let (era, day) = (days.div_euclid(DAYS_OF_ERA), days.rem_euclid(DAYS_OF_ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year + era * 400 + next;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// The first second of a day. The month is 1 to 12.
pub(crate) fn seconds_of_day(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day = (153 * month + 2) / 5 + day - 1;
    let days = era * DAYS_OF_ERA + year * 365 + year / 4 - year / 100 + day;
    (days - DAYS_TO_1970) * DAY_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (-62_135_596_800, "0001-01-01 00:00 UTC"),
            (-1, "1969-12-31 23:59 UTC"),
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_799, "2000-02-29 23:59 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_795_883_999, "2026-11-28 16:39 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59 UTC"),
        ] {
            assert_eq!(shown(seconds), text);
        }
    }

    #[test]
    fn a_day_begins_when_it_is_shown_to_begin() {
        for (year, month, day) in [(1, 1, 1), (1900, 3, 1), (2000, 2, 29), (2027, 12, 31)] {
            let text = format!("{year:04}-{month:02}-{day:02} 00:00 UTC");
            assert_eq!(shown(seconds_of_day(year, month, day)), text);
        }
    }
}
