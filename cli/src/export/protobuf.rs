//! Messages of other tools' `.proto` files.

/// Declares messages: a field has its type, its number, and what the definition calls it.
macro_rules! messages {
    ($( $(#[$meta:meta])* $name:ident { $( $field:ident: $type:ty = $number:tt $($kind:ident)+; )* } )*) => { $(
        #[derive(Clone, PartialEq, prost::Message)]
        $(#[$meta])*
        pub struct $name { $( #[prost($($kind),+, tag = $number)] pub $field: $type, )* }
    )* };
}

pub(crate) use messages;
