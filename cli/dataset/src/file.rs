//! One Parquet file: rows of one table, sorted, compressed with Zstandard, with statistics per row group and page.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type as Node};

use crate::VERSION;
use crate::rows::{Data, NO_TEXT, Rows};
use crate::schema::{Column, Table, Type};

/// Rows of a row group: engines skip groups whose statistics exclude them.
const GROUP: usize = 1 << 17;

/// Writes rows, without the columns that the names of folders contain.
///
/// # Errors
/// The file cannot be written.
pub fn write(rows: &Rows, without: &[&str], out: File) -> io::Result<()> {
    write_groups(rows, without, out).map_err(io::Error::other)
}

fn columns<'t>(table: &'t Table, without: &[&str]) -> Vec<(usize, &'t Column)> {
    let all = table.columns.iter().enumerate();
    all.filter(|(_, column)| !without.contains(&column.name)).collect()
}

fn write_groups(rows: &Rows, without: &[&str], out: File) -> Result<(), ParquetError> {
    let columns = columns(rows.table, without);
    let fields = columns
        .iter()
        .map(|(_, column)| field(column))
        .collect::<Result<Vec<_>, _>>()?;
    let schema = Node::group_type_builder(rows.table.name).with_fields(fields).build()?;
    let metadata = vec![KeyValue::new("culeak.version".to_owned(), VERSION.to_string())];
    let properties = WriterProperties::builder()
        .set_created_by(format!("culeak {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_key_value_metadata(Some(metadata))
        .set_column_statistics_enabled(ColumnPath::from("frames"), EnabledStatistics::None);
    // Their values are almost all distinct.
    let properties = ["address", "allocated_unix_ns"]
        .iter()
        .fold(properties, |properties, &column| {
            properties.set_column_dictionary_enabled(ColumnPath::from(column), false)
        });
    let out = io::BufWriter::with_capacity(1 << 16, out);
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()))?;
    // A `ByteArray` is shared, not copied, so a text takes its memory once for all rows.
    let texts = |data: &Data| match data {
        Data::Texts(texts) => texts
            .distinct
            .iter()
            .map(|text| text.as_bytes().to_vec().into())
            .collect(),
        _ => Vec::new(),
    };
    let texts: Vec<Vec<ByteArray>> = rows.data.iter().map(texts).collect();
    for group in rows.sorted().chunks(GROUP) {
        let mut writer = file.next_row_group()?;
        for &(nth, _) in &columns {
            let Some(mut to) = writer.next_column()? else { break };
            // 1 for a value, 0 for NULL.
            let mut levels: Vec<i16> = Vec::with_capacity(group.len());
            match &rows.data[nth] {
                Data::Numbers(numbers) => {
                    let values = group.iter().map(|&row| numbers[row as usize]);
                    levels.extend(values.clone().map(|value| i16::from(value.is_some())));
                    let values: Vec<i64> = values.flatten().collect();
                    to.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
                }
                Data::Flags(flags) => {
                    let values = group.iter().map(|&row| flags[row as usize]);
                    levels.extend(values.clone().map(|value| i16::from(value.is_some())));
                    let values: Vec<bool> = values.flatten().collect();
                    to.typed::<BoolType>().write_batch(&values, Some(&levels), None)?;
                }
                Data::Texts(own) => {
                    let values = group.iter().map(|&row| own.of[row as usize]);
                    levels.extend(values.clone().map(|number| i16::from(number != NO_TEXT)));
                    let present = values.filter(|&number| number != NO_TEXT);
                    let values: Vec<ByteArray> = present.map(|number| texts[nth][number as usize].clone()).collect();
                    to.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
                }
            }
            to.close()?;
        }
        writer.close()?;
    }
    file.finish()?;
    file.inner_mut().flush()?;
    Ok(())
}

fn field(column: &Column) -> Result<Arc<Node>, ParquetError> {
    let (physical, logical) = match column.of {
        Type::Number => (Physical::INT64, None),
        Type::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Type::Flag => (Physical::BOOLEAN, None),
    };
    let field = Node::primitive_type_builder(column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(field))
}
