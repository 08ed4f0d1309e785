create table person (person text primary key, follower text not null);
insert into person values ('ann', 'bob'), ('bob', 'cy'), ('cy', 'ann');
create table duty (desk text primary key, person text not null references person);
insert into duty values ('night', 'ann'), ('day', 'cy');
