//! `ExportMetricsServiceRequest` of OTLP: gauges and counters with whole numbers.

use prost::{Message, Oneof};

use super::otlp::{KeyValue, Resource, Scope};

#[derive(Clone, PartialEq, Message)]
pub struct ExportMetrics {
    #[prost(message, repeated, tag = "1")]
    pub resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub description: String,
    #[prost(string, tag = "3")]
    pub unit: String,
    #[prost(oneof = "Data", tags = "5, 7")]
    pub data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
}

#[derive(Clone, PartialEq, Message)]
pub struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub data_points: Vec<NumberDataPoint>,
    /// [`CUMULATIVE`].
    #[prost(int32, tag = "2")]
    pub aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub is_monotonic: bool,
}

/// Sums count from the start.
pub const CUMULATIVE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub struct NumberDataPoint {
    #[prost(message, repeated, tag = "7")]
    pub attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    #[prost(oneof = "Number", tags = "6")]
    pub value: Option<Number>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Number {
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

/// What a metric counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// The present state.
    Now,
    /// Everything since the start.
    SinceStart,
}

impl Metric {
    /// `points`: attributes and value. Values beyond the protocol's signed numbers become the largest of these.
    pub fn new(
        name: &str,
        description: &str,
        unit: &str,
        counts: Counts,
        [started_ns, at_ns]: [u64; 2],
        points: impl IntoIterator<Item = (Vec<KeyValue>, u64)>,
    ) -> Metric {
        let data_points = points.into_iter().map(|(attributes, value)| NumberDataPoint {
            attributes,
            start_time_unix_nano: started_ns,
            time_unix_nano: at_ns,
            value: Some(Number::Int(i64::try_from(value).unwrap_or(i64::MAX))),
        });
        let data_points = data_points.collect();
        Metric {
            name: name.to_owned(),
            description: description.to_owned(),
            unit: unit.to_owned(),
            data: Some(match counts {
                Counts::Now => Data::Gauge(Gauge { data_points }),
                Counts::SinceStart => Data::Sum(Sum {
                    data_points,
                    aggregation_temporality: CUMULATIVE,
                    is_monotonic: true,
                }),
            }),
        }
    }
}

/// The metrics of one process.
pub fn of_resource(attributes: Vec<KeyValue>, metrics: Vec<Metric>) -> ResourceMetrics {
    ResourceMetrics {
        resource: Some(Resource { attributes }),
        scope_metrics: vec![ScopeMetrics {
            scope: Some(Scope::culeak()),
            metrics,
        }],
    }
}
