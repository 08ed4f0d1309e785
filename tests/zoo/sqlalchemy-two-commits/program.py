"""Book each new payment and commit, mark it as done and commit, with SQLAlchemy's session."""

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

engine = create_engine("postgresql+psycopg://", pool_size=1)
with Session(engine) as session:
    new = session.execute(text("select payment_id, cents from payment where state = 'new' order by 1")).all()
    session.rollback()
    for payment_id, cents in new:
        session.execute(text("insert into ledger values (:id, :cents)"), {"id": payment_id, "cents": cents})
        session.commit()
        session.execute(text("update payment set state = 'done' where payment_id = :id"), {"id": payment_id})
        session.commit()
engine.dispose()
