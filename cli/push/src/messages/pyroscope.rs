//! `push.v1.PushRequest` of Pyroscope's push API, which is documented as stable.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    pub series: Vec<RawProfileSeries>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LabelPair {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RawSample {
    /// A pprof profile, gzipped or not.
    #[prost(bytes = "vec", tag = "1")]
    pub raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    pub id: String,
}

/// A request with one profile. `name` is the first part of the profile's type; `labels` include `service_name`.
pub fn request(name: &str, labels: &[(String, String)], raw_profile: Vec<u8>) -> PushRequest {
    let label = |name: &str, value: &str| LabelPair {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let mut pairs = vec![label("__name__", name)];
    pairs.extend(labels.iter().map(|(name, value)| label(name, value)));
    let sample = RawSample {
        raw_profile,
        id: super::id_text(super::new_id()),
    };
    let series = RawProfileSeries {
        labels: pairs,
        samples: vec![sample],
    };
    PushRequest { series: vec![series] }
}
