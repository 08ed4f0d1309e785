"""Book each payment by its key in a transaction of SQLAlchemy's session; what is there is left alone."""

import csv

from sqlalchemy import BigInteger, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """What the tables share."""


class Booking(Base):
    """A row of the ledger."""

    __tablename__ = "ledger"
    payment_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(BigInteger)


engine = create_engine("postgresql+psycopg://", pool_size=1)
with open("payments.csv") as file:
    for row in csv.DictReader(file):
        with Session(engine) as session, session.begin():
            if session.get(Booking, row["payment_id"]) is None:
                session.add(Booking(payment_id=row["payment_id"], cents=int(row["cents"])))
engine.dispose()
