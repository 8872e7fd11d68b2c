//! Parquet: the same table as `csv`, with types, compressed, for DuckDB, pandas, Polars and Spark.
//!
//! Numbers are unsigned 64-bit integers, and an empty text is NULL. Texts are stored in dictionaries, so that a stack of
//! a million rows is written once per row group. Row groups bound the memory that writing needs.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};

use super::Input;
use super::records::{COLUMNS, Column, Field, Rows};
use crate::progress::{Progress, Unit};

/// Rows of a row group, which has its own dictionaries.
const GROUP: usize = 1 << 20;
/// Size limit of a dictionary in bytes; beyond it, each row repeats its text.
const DICTIONARY: usize = 256 << 20;

pub const ABOUT: &str = "One row per live allocation, typed and compressed";

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    write_all(input.tables(), out)
}

/// Each table begins a row group.
pub fn write_all<'a>(tables: impl Iterator<Item = Rows<'a>>, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(out).map_err(io::Error::other)?;
    for rows in tables {
        table.add(&rows).map_err(io::Error::other)?;
    }
    table.finish().map_err(io::Error::other)
}

/// A buffer for the library, whose writer must be owned and `Send`; our writer is neither.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn empty_into(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&bytes)?;
        bytes.clear();
        Ok(())
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is being written.
struct Table<'o> {
    out: &'o mut dyn Write,
    buffer: Buffer,
    file: SerializedFileWriter<Buffer>,
}

impl<'o> Table<'o> {
    fn new(out: &'o mut dyn Write) -> Result<Table<'o>, ParquetError> {
        let fields = COLUMNS.iter().map(field).collect::<Result<Vec<_>, _>>()?;
        let schema = Type::group_type_builder("allocations").with_fields(fields).build()?;
        let properties = WriterProperties::builder()
            .set_created_by(format!("culeak {}", env!("CARGO_PKG_VERSION")))
            .set_compression(Compression::SNAPPY)
            .set_dictionary_page_size_limit(DICTIONARY)
            .set_column_statistics_enabled(ColumnPath::from("stack"), EnabledStatistics::None);
        // Their values are almost all distinct.
        let properties = ["address", "time_ns"].iter().fold(properties, |properties, &column| {
            properties.set_column_dictionary_enabled(ColumnPath::from(column), false)
        });
        let properties = properties.build();
        let buffer = Buffer::default();
        let file = SerializedFileWriter::new(buffer.clone(), Arc::new(schema), Arc::new(properties))?;
        Ok(Table { out, buffer, file })
    }

    fn add(&mut self, rows: &Rows) -> Result<(), ParquetError> {
        let Table { out, buffer, file } = self;
        // A `ByteArray` is shared, not copied, so a text takes its memory once for all rows.
        let texts =
            (0..COLUMNS.len()).map(|column| rows.texts(column).iter().map(|text| text.as_bytes().to_vec().into()));
        let texts: Vec<Vec<ByteArray>> = texts.map(Iterator::collect).collect();
        let fields_in_all = rows.rows().len() * COLUMNS.len();
        let progress = Progress::over("writing", fields_in_all as u64, Unit::Of("fields"));
        for group in rows.rows().chunks(GROUP) {
            let mut writer = file.next_row_group()?;
            for (nth, column) in COLUMNS.iter().enumerate() {
                let Some(mut to) = writer.next_column()? else { break };
                match column.field {
                    Field::Number(number) => {
                        // The format stores unsigned numbers as signed ones with the same bits.
                        let value = |row| number(&rows.allocation(row)) as i64;
                        let values: Vec<i64> = group.iter().map(value).collect();
                        to.typed::<Int64Type>().write_batch(&values, None, None)?;
                    }
                    _ => {
                        let text = |row| &texts[nth][rows.text(nth, row)];
                        let present = |text: &&ByteArray| !text.is_empty();
                        let values: Vec<ByteArray> = group.iter().map(text).filter(present).cloned().collect();
                        // 1 for a text, 0 for NULL.
                        let levels: Vec<i16> = group.iter().map(|row| i16::from(present(&text(row)))).collect();
                        to.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
                    }
                }
                progress.advance(group.len() as u64);
                to.close()?;
            }
            writer.close()?;
            buffer.empty_into(*out)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<(), ParquetError> {
        self.file.close()?;
        Ok(self.buffer.empty_into(self.out)?)
    }
}

fn field(column: &Column) -> Result<Arc<Type>, ParquetError> {
    let (physical, logical, repetition) = match column.field {
        Field::Number(_) => (Physical::INT64, LogicalType::integer(64, false), Repetition::REQUIRED),
        _ => (Physical::BYTE_ARRAY, LogicalType::String, Repetition::OPTIONAL),
    };
    let field = Type::primitive_type_builder(column.name, physical)
        .with_repetition(repetition)
        .with_logical_type(Some(logical))
        .build()?;
    Ok(Arc::new(field))
}
