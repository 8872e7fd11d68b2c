//! Protobuf messages, as far as they are written here, with the field numbers of the published definitions.
//!
//! `tests/push` decodes them with the published definitions and compares every field.

pub mod otlp;
pub mod otlp_metrics;
pub mod otlp_profiles;
pub mod pyroscope;

use std::hash::{BuildHasher, RandomState};

/// A random number that need not be secret: for identifiers and for jitter. Each [`RandomState`] has other keys, which the
/// system's source of randomness seeds.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The 16 bytes of a new identifier, version 4 of RFC 9562.
pub fn new_id() -> [u8; 16] {
    let mut id = [0; 16];
    let (high, low) = id.split_at_mut(8);
    high.copy_from_slice(&random().to_be_bytes());
    low.copy_from_slice(&random().to_be_bytes());
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// An identifier as text: `734fd599-6865-419e-9475-932762d8f469`.
pub fn id_text(id: [u8; 16]) -> String {
    let hex = data_encoding::HEXLOWER.encode(&id);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_a_random_uuid() {
        let (one, other) = (id_text(new_id()), id_text(new_id()));
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert_eq!(&one[14..15], "4");
        assert!("89ab".contains(&one[19..20]), "{one}");
    }
}
