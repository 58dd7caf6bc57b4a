//! The wire format of protocol buffers, as far as these messages need it: fields of a message
//! one after another. A known field number with another wire type is an unknown field, as in
//! TensorFlow's Python messages; a derived `prost` message would refuse it.

/// Groups in groups, which old writers may leave in unknown fields, end here.
const GROUPS_MAX: usize = 100;

/// The bytes do not follow the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
    /// What no field here has: eight bytes, or a group.
    Other,
}

/// The fields that are left of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field: its number and value.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire) = self.tag()?;
        if wire == 3 {
            self.skip_group(number)?;
            return Ok(Some((number, Value::Other)));
        }
        Ok(Some((number, self.value(wire)?)))
    }

    fn tag(&mut self) -> Result<(u32, u32), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        match tag >> 3 {
            0 => Err(Malformed),
            number => Ok((number, tag & 7)),
        }
    }

    fn value(&mut self, wire: u32) -> Result<Value<'a>, Malformed> {
        Ok(match wire {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Other
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                let (first, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
                self.0 = rest;
                Value::Fixed32(*first)
            }
            _ => return Err(Malformed),
        })
    }

    /// Up to the end of a group, with the groups in it.
    fn skip_group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            match self.tag()? {
                (number, 3) if open.len() < GROUPS_MAX => open.push(number),
                (number, 4) if number == *innermost => drop(open.pop()),
                (_, wire) => drop(self.value(wire)?),
            }
        }
        Ok(())
    }

    /// A number in seven bits a byte; bits above the 64th are dropped.
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (place, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                self.0 = &self.0[place + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (first, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(first)
    }
}

/// Adds a number in seven bits a byte.
pub(crate) fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Adds a field that holds bytes, or another message.
pub(crate) fn put_bytes(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    to.push(number << 3 | 2);
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_skipped_and_end_with_their_own_number() {
        let mut fields = Fields(&[0x4b, 0x53, 0x08, 1, 0x54, 0x4c, 0x08, 7]);
        assert_eq!(fields.next(), Ok(Some((9, Value::Other))));
        assert_eq!(fields.next(), Ok(Some((1, Value::Varint(7)))));
        assert_eq!(fields.next(), Ok(None));
        assert_eq!(Fields(&[0x4b, 0x54]).next(), Err(Malformed));
        assert_eq!(Fields(&[0x4b; 1000]).next(), Err(Malformed));
    }

    #[test]
    fn varints_are_read_as_they_are_written() {
        for number in [0, 1, 127, 128, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(Fields(&bytes).varint(), Ok(number));
            assert!(bytes.len() == 1 || Fields(&bytes[1..]).varint() != Ok(number));
        }
        assert_eq!(Fields(&[0xff; 11]).varint(), Err(Malformed));
    }
}
